# Trains an open_clip model in a custom loop, and evaluates it after each epoch.
# prints: epoch 1: {'shapes_color/text_score': 0.
import open_clip
import torch
from PIL import Image

import ttmbench

towers = {"layers": 2, "width": 64}
image, text = {"image_size": 64, "patch_size": 16, "head_width": 32, **towers}, {"heads": 2, **towers}
model = open_clip.CLIP(64, image, text)  # in place of yours
training, validation = (open_clip.image_transform(64, is_train=is_train) for is_train in (True, False))
tokenizer = open_clip.get_tokenizer("ViT-B-32")
colors = ["red", "green", "blue", "yellow"]
images = torch.stack([training(Image.new("RGB", (64, 64), color)) for color in colors])
texts, labels = tokenizer([f"a {color} square" for color in colors]), torch.arange(len(colors))

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
evaluator = ttmbench.Evaluator("shapes_color", limit=20, preprocess=(validation, tokenizer))
model.train()
for epoch in range(2):
    image_features, text_features, scale = model(images, texts)[:3]
    logits = scale * image_features @ text_features.T
    loss = torch.nn.functional.cross_entropy(logits, labels) + torch.nn.functional.cross_entropy(logits.T, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch}: {evaluator(model)}")  # or wandb.log(evaluator(model))
