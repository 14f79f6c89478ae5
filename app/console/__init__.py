"""The console: the page at `/`, and what it asks for beside the API that every client uses."""
