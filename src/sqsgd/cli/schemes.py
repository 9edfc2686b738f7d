"""``sqsgd schemes``: the guarantee and message size of every scheme under a budget."""

from __future__ import annotations

from sqsgd.cli._tables import cell, print_json, print_table
from sqsgd.cli.options import Bytes, Dim, Epsilon, Json


def schemes(
    dim: Dim = 119850,
    epsilon: Epsilon = 400.0,
    bytes_: Bytes = 256,
    as_json: Json = False,
) -> None:
    """List the schemes, with the guarantee and message size of each under a budget."""
    from sqsgd._internal import checks
    from sqsgd._internal.files import worded
    from sqsgd.schemes import SCHEMES, make_scheme

    checks.integer("dim", dim, 1, 2**24)
    checks.integer("bytes", bytes_, 1, 2**37)
    checks.real("epsilon", epsilon, 0.01, 1e5)
    rows: list[dict[str, object]] = []
    for name, function in SCHEMES.items():
        summary = (function.__doc__ or "").strip().splitlines()[0]
        try:
            scheme = make_scheme(name, dim=dim, epsilon=epsilon, bytes=bytes_)
        except ValueError as error:
            rows.append({"name": name, "notion": "impossible here", "epsilon": 0.0, "summary": str(error)})
            continue
        rows.append(
            {
                "name": name,
                "notion": scheme.privacy.notion,
                "epsilon": scheme.privacy.epsilon,
                "delta": scheme.privacy.delta,
                "arithmetic": scheme.privacy.arithmetic if scheme.privacy.is_private else "",
                "message_bytes": scheme.bits // 8,
                "code_bytes": -(-scheme.code_bits // 8),
                "keeps_residual": scheme.residual,
                "summary": summary,
            }
        )
    if as_json:
        print_json([{**row, "epsilon": worded(row["epsilon"])} for row in rows])
        return
    columns = ("name", "notion", "epsilon", "arithmetic", "message_bytes", "summary")
    heads = [column.replace("message_bytes", "bytes") for column in columns]
    shown = [[cell(row.get(column)).replace("``", "") for column in columns] for row in rows]
    print_table(heads, shown)
