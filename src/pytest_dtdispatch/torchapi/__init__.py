"""Every private name of torch that we use, found by probing; nothing else of ours spells one."""
