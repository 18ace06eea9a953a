"""``python -m pytest_dtdispatch`` is the ``dtdispatch`` command."""

from pytest_dtdispatch.cli import main

raise SystemExit(main())
