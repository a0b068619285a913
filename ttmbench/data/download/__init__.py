"""Fetching what tasks need: from the web, Drive and the hub, resumed, checked and safely unpacked."""
