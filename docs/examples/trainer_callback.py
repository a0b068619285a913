# Finetunes a CLIP with transformers' Trainer; compositional tasks are logged with all else after each epoch.
# prints: shapes_color/group_match
# prints: shapes_place/group_score
from pathlib import Path

from PIL import Image
from transformers import AutoProcessor, CLIPModel, Trainer, TrainerCallback, TrainingArguments

import ttmbench


class Composition(TrainerCallback):
    def __init__(self, trainer, evaluator):
        self.trainer, self.evaluator = trainer, evaluator

    def on_epoch_end(self, args, state, control, model, **others):
        if state.is_world_process_zero:
            self.trainer.log(self.evaluator(model))


folder = Path(ttmbench.__file__).parent / "model_adapters/assets/tiny_clip"  # in place of your model
model, processor = CLIPModel.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
colors = ["red", "green", "blue", "yellow", "purple", "orange"]
rows = [{"image": Image.new("RGB", (64, 64), color), "caption": f"a {color} square"} for color in colors]


def collate(batch):
    images, captions = [row["image"] for row in batch], [row["caption"] for row in batch]
    inputs = processor(images=images, text=captions, padding=True, return_tensors="pt")
    return {**inputs, "return_loss": True}


how = {"num_train_epochs": 2, "learning_rate": 1e-5, "remove_unused_columns": False, "report_to": "none"}
trainer = Trainer(model, TrainingArguments("trained", **how), train_dataset=rows, data_collator=collate)
evaluator = ttmbench.Evaluator(["shapes_color", "shapes_place"], limit=20, preprocess=processor)
trainer.add_callback(Composition(trainer, evaluator))
trainer.train()
