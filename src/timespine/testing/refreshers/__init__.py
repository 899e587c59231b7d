"""Histories of real stores with views: several processes create, refresh and drop them, and storage fails.

`queries` has the views and what each is by hand, `view_checks` the promises V1 to V6 at every commit, `view_users` the
calls, and `view_history` the course of one history.
"""
