"""How gradients are summed over the workers: one module per method, one interface.

A reduction works on a list of tensors. It starts as one worker's `[sums, *gradients]`: a row of `StepSums` and this worker's part of the
mean gradient. It ends as the same list summed over all workers. In between, a method alternates between computing and sending: `packed`
sends once, `powersgd` twice. The transport is separate (`trainer.network.all_reduce`).
"""
