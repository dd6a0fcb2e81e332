"""Random small Keras programs, trained by `fit` on one worker and on several: the same weights, history and calls of callbacks?"""
