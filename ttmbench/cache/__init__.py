"""The cache in the user's cache folder: raw scores, blocks of them, digests of images, prepared images."""
