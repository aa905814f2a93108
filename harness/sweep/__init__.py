"""Studies of many points: experiments, plans, running them unattended, resuming."""
