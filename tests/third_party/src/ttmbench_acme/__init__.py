"""A third-party plugin of ttmbench, as its authors would write it."""
