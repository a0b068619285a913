# Two models with TTM, and the figures of a paper: one column wide, with both models in each.
# prints: 6 figures in figures
# prints: iterations_shapes_spatial.pdf
for model in tiny-clip tiny-clip-seed1; do
  ttmbench --model $model --tasks shapes_spatial --limit 24 --ttm --ttm_args iterations=2,epochs=1 --seeds 0,1 -o results
done
ttmbench report results --figures figures
ls figures    # iterations, categories (by the tag "relation") and paired, each as PDF and SVG
