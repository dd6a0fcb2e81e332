"""The traced functions that train and test a model on one worker."""
