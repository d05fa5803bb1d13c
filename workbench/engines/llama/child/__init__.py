"""What runs in child processes: the only code that touches llama.cpp's libraries."""
