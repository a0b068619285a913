# Before a long run: are model and data here, how much is there to do, and where will the results be?
# prints: task     shapes_color: 200 groups, data are here
# prints: method   ttm: lr 0.0005, at most 150,000 passes of a group, seeds 0, 1, 2
# prints: results  results/tiny-clip/results_DATE.json
# prints: exit code 4
ttmbench --model tiny-clip --tasks builtin --ttm --seeds 0,1,2 --output_path results --dry_run
# It fails where the run would; this checkpoint does not exist:
code=0
ttmbench --model hf --model_args pretrained=./my-checkpoint --tasks shapes_color --dry_run || code=$?
echo "exit code $code"
