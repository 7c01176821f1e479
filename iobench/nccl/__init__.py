"""What NCCL says of itself: its log and its topology files."""
