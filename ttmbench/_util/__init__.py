"""Helpers below everything: files, texts, images, arrays, the terminal; nothing here knows a task or a model."""
