"""Results that somebody else sends: does a run's document agree with its scores, its task, its records and itself?"""
