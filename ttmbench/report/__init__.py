"""``ttmbench report``: results documents and what lies beside them as one page that opens offline."""
