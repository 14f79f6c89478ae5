"""How requests that name no version reach one: weights, copies and what is measured, as far as a model has such."""
