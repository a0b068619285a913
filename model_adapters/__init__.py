"""Model adapters, one module per kind of model. To add one: docs/add-an-adapter.md."""
