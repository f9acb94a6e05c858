"""`tilewright show`: an interactive page of a kernel, every access of which the simulator has recorded.

runs      runs of a kernel, and which elements of A and B, and scales of blocks, each access moves
trace     a run as steps: who touches what
record    the record of a kernel, as data for the page: steps, sources, counters, what it does with a line left out
launches  which kernels there are to show, and how they are run: steps of the ladders, plans, users' own
sliders   what the planner says of other plans: legality and time
page      one file of all that: page.html, page.css and page.js are its parts
"""
