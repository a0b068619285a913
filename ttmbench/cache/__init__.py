"""What runs keep for later ones, in the user's cache folder: raw scores, blocks of them, digests of images."""
