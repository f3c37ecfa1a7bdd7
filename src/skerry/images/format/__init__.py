"""What a layer is made of: EROFS blobs, chunk lists, and the tool that makes them."""
