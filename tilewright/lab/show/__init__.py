"""`tilewright show`: an interactive page of a kernel, every access of which the simulator has recorded.

trace     a run of a kernel as steps: who touches what, and which elements of A and B it is
record    the record of a kernel, as data for the page: steps, sources, counters, what it does with a line left out
launches  which kernels there are to show, and how they are run: steps of the ladders, plans, users' own
sliders   what the planner says of other plans: legality and time
page      one file of all that: page.html, page.css and page.js are its parts
"""
