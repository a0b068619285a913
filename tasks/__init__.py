"""Task files, one YAML each. To add a task, add a file: docs/add-a-task.md."""
