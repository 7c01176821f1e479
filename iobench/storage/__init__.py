"""Files on their way into memory: safetensors layout, readers, page cache, block devices, filesystems."""
