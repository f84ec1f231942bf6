"""docs/reference/http-admin.md, from the routes of operators and the models of their answers."""

from collections.abc import Iterator, Mapping
from typing import Final

from scripts.reference_pages.http_routes import route_part, routes
from scripts.reference_pages.http_shapes import ADMIN_TITLES, ShapeParts, admin_places
from scripts.reference_pages.markdown import page

_INTRODUCTION: Final = """\
The routes of a gateway for operators, which `qlm` uses, too. They have a listener of their own (`admin`, \
port 8090), which serves `/healthz` and `/readyz` as well. With an admin token (`QLM_ADMIN_TOKEN`), calls \
of all but those two need the header `authorization: Bearer TOKEN`; without, they are 401 \
`admin_token_required`. An API key with the scope `admin` does in its place. \
[http.md](http.md) describes what is common to all routes, such as [errors](http.md#errors)."""


_BODIES: Final[Mapping[str, str]] = {
    "POST /admin/v1/keys": (
        "A JSON object with `tenant`, optionally `scopes` (a list of `infer` and `admin`; `infer` alone if "
        "not given) and `expires_in_s` (a lifetime in seconds; null for none)."
    ),
}


def http_admin_page() -> str:
    """Return the page."""
    return page("HTTP reference for operators", _INTRODUCTION, *_parts())


def _parts() -> Iterator[str]:
    places = admin_places()
    shapes = ShapeParts(ADMIN_TITLES, places)
    for route in routes():
        if route.of_operators:
            yield from route_part(route, places, _BODIES.get(route.name, ""))
            for each in (each for answers in route.answers.values() for each in answers):
                yield from shapes.of(each)
