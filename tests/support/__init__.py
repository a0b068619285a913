"""A stand-in for the Hugging Face hub, and small copies of the repositories that ttmbench names."""
