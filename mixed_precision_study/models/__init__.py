"""Models that neither PyTorch nor timm has ready made."""
