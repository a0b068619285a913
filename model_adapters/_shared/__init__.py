"""What several kinds of models share; a kind is a module one folder up."""
