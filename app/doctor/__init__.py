"""What is unsafe or broken on a machine, and where nodes differ: checks that each say what they found in a sentence."""
