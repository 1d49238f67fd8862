"""Runs a command under a seccomp profile as container runtimes do: seccomp.py PROFILE COMMAND."""

import json
import os
import sys

import pyseccomp


def action(name: str, number: int):
    return pyseccomp.ALLOW if name == "SCMP_ACT_ALLOW" else pyseccomp.ERRNO(number)


def load(path: str) -> None:
    with open(path) as file:
        profile = json.load(file)
    rules = pyseccomp.SyscallFilter(action(profile["defaultAction"], profile["defaultErrnoRet"]))
    for group in profile["syscalls"]:
        arguments = [
            pyseccomp.Arg(a["index"], pyseccomp.MASKED_EQ, a["value"], a["valueTwo"])
            for a in group.get("args", [])
            if a["op"] == "SCMP_CMP_MASKED_EQ"
        ]
        assert len(arguments) == len(group.get("args", [])), group
        for name in group["names"]:
            rules.add_rule(action(group["action"], group.get("errnoRet", 1)), name, *arguments)
    rules.load()


load(sys.argv[1])
os.execvp(sys.argv[2], sys.argv[2:])
