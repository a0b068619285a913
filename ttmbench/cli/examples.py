"""Examples for the help of each command, and answers for options of lm-evaluation-harness."""

from __future__ import annotations

EXAMPLES = {
    "run": (
        "ttmbench --model tiny-clip --tasks shapes_color --ttm",
        "ttmbench run --model siglip-b16 --tasks winoground,whatsup_a --ttm --ttm_preset paper --output_path results",
        "ttmbench run -m hf -a pretrained=./my-model,dtype=bfloat16 -t colorswap -b auto -L 0.1",
    ),
    "sweep": (
        "ttmbench sweep plan.yaml -o board --dry_run",
        "ttmbench sweep plan.yaml -o board",
        "ttmbench sweep plan.yaml -o board --cell 7",
    ),
    "score": (
        "ttmbench score clip.jsonl --task winoground",
        "ttmbench score embeddings.npz --task winoground --logit_scale 100",
    ),
    "analyze": (
        "ttmbench analyze thresholds --model siglip-b16 --tasks winoground",
        "ttmbench analyze lr --model tiny-clip --tasks shapes_color --lrs 1e-4,1e-3",
        "ttmbench analyze transfer --model tiny-clip --tasks shapes_color,shapes_place --seeds 0,1",
    ),
    "finetune": (
        "ttmbench finetune --model clip-b32 --tasks colorswap_train --preset colorswap --output_path clip-colorswap",
        "ttmbench finetune --model blip-itm --tasks colorswap_train --finetune_args epochs=5,lr=1e-5 -o blip-colorswap",
    ),
    "compare": (
        "ttmbench compare a.json b.json",
        "ttmbench compare a.json --filters none,ttm --output_path comparison.md",
    ),
    "leaderboard": ("ttmbench leaderboard results", "ttmbench leaderboard results --published all --site site"),
    "report": ("ttmbench report results", "ttmbench report results --output_path page.html --title 'Spatial tasks'"),
    "export": ("ttmbench export results --to csv", "ttmbench export run.json --to latex --output_path table.tex"),
    "submit": ("ttmbench submit results/siglip-b16", "ttmbench submit run.json --repository ../ttmbench"),
    "reproduce": (
        "ttmbench reproduce",
        "ttmbench reproduce ttm_table1 --models siglip-b16 --runs results --run",
    ),
    "ls": ("ttmbench ls tasks", "ttmbench ls methods", "ttmbench ls models --json"),
    "show": ("ttmbench show winoground", "ttmbench show siglip-b16 --published", "ttmbench show ttm"),
    "validate": (
        "ttmbench validate my_task.yaml",
        "ttmbench validate 'shapes_*' --offline",
        "ttmbench validate run.json results/submissions",
    ),
    "download": (
        "ttmbench download sugarcrepe whatsup --dry_run",
        "ttmbench download --model siglip-b16 --tasks winoground --data_dir data",
    ),
    "cache": ("ttmbench cache ls", "ttmbench cache prune --older_than 30 --dry_run"),
    "doctor": ("ttmbench doctor", "ttmbench doctor winoground siglip-b16"),
    "new": ("ttmbench new task my_colors", "ttmbench new method my_method"),
}

NOT_TAKEN = {
    "--num_fewshot": "every task is zero-shot; omit it",
    "-f": "every task is zero-shot; omit it",
    "--apply_chat_template": "chat models always use their own template; omit it",
    "--system_instruction": "vqascore takes the question as --model_args template=...",
    "--gen_kwargs": "only forced choices generate text; --model_args max_tokens=N limits an answer",
    "--max_batch_size": "--batch_size auto finds a size that fits",
    "--predict_only": "--save_scores and --log_samples save the outputs; `ttmbench score` evaluates them later",
    "-x": "--save_scores and --log_samples save the outputs; `ttmbench score` evaluates them later",
    "--write_out": "`ttmbench validate TASK` shows a group",
    "-w": "`ttmbench validate TASK` shows a group",
    "--show_config": "--dry_run prints all settings",
    "--check_integrity": "`ttmbench validate TASK` checks a task's data",
    "--cache_requests": "raw scores are always cached; --use_cache DIR|off sets where",
    "--wandb_args": "--track wandb, with --track_args project=...,name=...",
    "--hf_hub_log_args": "`ttmbench export RESULTS --to evaluation-results` writes results for the Hub",
    "--metadata": "--task_args K=V,... changes the source of the tasks",
    "-c": "use --use_cache DIR",
    "-s": "use --log_samples",
    "-v": "use --verbosity debug",
    "-E": "use --samples FILE",
}
"""Options of lm-evaluation-harness that ttmbench does not have -> what to use instead."""
