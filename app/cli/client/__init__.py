"""Commands that ask a server that runs, here or elsewhere: they speak HTTP to it, as every client does."""
