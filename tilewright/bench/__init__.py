"""How fast, compared with whom: the peers, the suites, and what is shown of them.

    cases.py      WHAT is timed, as data: products of formats, cases; suites/ lists them: cpu, formats, gpu, ladders,
                  and the studies gpu_costs, ladder_simulated, startup, tiles
    peer.py       AGAINST WHOM: peers/ has a file for each library
    child.py      one process per thread count and ISA: checks and times its cases on cpu_device.py or gpu_device.py;
                  session.py starts it, listens, and goes on where a case broke it
    results.py    the JSON; report.py the tables, plot.py the pictures (bench/readme.py puts them in documents)
    commands.py   what each command of `tilewright bench` does; progress.py shows how far it is

How to measure, without peers, is in measure/.  Nothing is imported here, so that `tilewright --help` stays quick.
The rules and their reasons: docs/benchmarking.md.
"""
