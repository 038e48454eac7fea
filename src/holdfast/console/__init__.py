"""The console: pages on the admin port that show a running gateway, and let an operator act.

    overview       the equation of every destination, the graph with its figures, an hour of history
    destinations   state, lag, what holds one up; pause, resume, skip, tap
    events         one run, job or trace: from its receipt to what became of it everywhere
    dead letters   by reason; edit, redrive, purge
    pipelines, data nodes
    store          commits, their files, what differs between two, the collector

Pages are made here, on the server; a browser gets HTML, one small script and two libraries that lie
beside it, and nothing from anywhere else. Everything shown comes from the verbs of the control
socket, and so from the same statistics as the metrics; everything done is one of those verbs, or
the command that does it on the command line. Who may see and do what is in access.py.

A gateway whose console is off imports none of this; one whose console nobody looks at keeps an
hour of figures (history.py), and has not loaded its templates.
"""
