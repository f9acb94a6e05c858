"""The snapshot: which plans, code and launches some 400 products take on six targets, and how many Python calls."""
