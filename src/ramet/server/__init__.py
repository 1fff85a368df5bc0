"""`ramet serve`: the operations over HTTP, for programs on other machines and for other programs' clients.

It needs the extra ``ramet[server]``, and nothing else of Ramet imports it. It makes no sandbox itself: each
tenant has a daemon and a core of its own, which it asks as any client does. So a server that is restarted
finds every sandbox where it was. Begin with `app`, which lists the routes, then `guard`, through which every
request goes first.
"""
