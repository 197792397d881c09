"""`web.BaseRequest` ↔ `Exchange`: one file for each kind of endpoint, and the dispatch by path."""
