# Images and captions of your own, in a table with semicolons as spreadsheets save it, become a task.
# prints: ok, version 1, 2x2
# prints: 3 groups, all images decode
# prints: group_match
# prints: images of pairs: 6 images, linked
ttmbench new task pairs    # a folder with drawn images: put your own in their place
cat > pairs/pairs.csv <<'TABLE'
name;left photo;right photo;left caption;right caption;kind
g1;g1_0.png;g1_1.png;a blue triangle and a green moon;a green triangle and a blue moon;sharp
g2;g2_0.png;g2_1.png;a green heart and a purple ring;a purple heart and a green ring;round
g3;g3_0.png;g3_1.png;a yellow ring and a red circle;a red ring and a yellow circle;round
TABLE
cat > pairs/pairs.yaml <<'TASK'
task: pairs
version: 1
source: {kind: folder, path: pairs.csv, images: images}
group:
  shape: [2, 2]
  id: name
  images: [left photo, right photo]
  captions: [left caption, right caption]
  tags: [kind]
metrics: [text_score, image_score, group_score, group_match]
TASK
ttmbench validate pairs/pairs.yaml
ttmbench --model tiny-clip --tasks pairs/pairs.yaml --ttm --ttm_args iterations=2,epochs=2 --output_path results --log_samples
ttmbench report results --include_path pairs
