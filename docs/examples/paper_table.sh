# The table of a paper from three runs: two settings of TTM on one model, and another model.
# prints: | model | setting | shapes\_place (n = 24 of 200): raw | shapes\_place (n = 24 of 200): SimpleMatch |
# prints: | tiny-clip |  |
# prints: | tiny-clip | lr=0.003 | – | – |
# prints: (Holm over 3 tests
# prints: shapes\_place/left-right (n =
common="--tasks shapes_place --limit 24 --ttm --seeds 0,1 --output_path results"
ttmbench --model tiny-clip $common --ttm_args iterations=1,epochs=1 > log.txt
ttmbench --model tiny-clip $common --ttm_args iterations=1,epochs=1,lr=0.003 >> log.txt
ttmbench --model tiny-clip-seed1 $common --ttm_args iterations=1,epochs=1 >> log.txt
ttmbench export results --to latex --output_path table.tex    # \input{table} in the paper
ttmbench export results --to md
ttmbench export results --to md --columns ttm --by axis       # categories
ttmbench export results --to csv --columns raw,simplematch --baseline tiny-clip    # gains over a model
