# Is one model better than another one, or is the difference noise? Every run stores what the test needs.
# prints: tiny-clip -> tiny-clip-seed1: percent
# prints: won: groups in which other is better
# prints: SimpleMatch>TTM
ttmbench --model tiny-clip --tasks shapes_place,shapes_color --limit 30 --ttm --ttm_args iterations=1,epochs=1 --output_path a.json > log.txt
ttmbench --model tiny-clip-seed1 --tasks shapes_place,shapes_color --limit 30 --output_path b.json >> log.txt
ttmbench compare a.json b.json --metrics group_score,group_match
ttmbench compare a.json --metrics group_match    # TTM with the model without training
