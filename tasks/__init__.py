"""The steps of a flow: collect, validate, reward, train, evaluate, register, decide."""
