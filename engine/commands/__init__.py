"""The commands of the command line, a file for each kind: parse, one engine call, print."""
