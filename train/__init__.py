"""Training: recipes, data, optimizers, the loop, and everything a resume needs."""
