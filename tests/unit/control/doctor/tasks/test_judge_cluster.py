"""What the judge makes of the probes' answers before the checks see them."""

from control.doctor.tasks import judge as judge_cluster

CODE, DATA = "/dfs/code/trainer-1.zip", "/dfs/datasets/2/manifest.json"


def host(**digests):
    paths = {"code": CODE, "data": DATA}
    return {"tokens": [{"path": paths[name], **({"sha256": sha} if sha else {"error": "No such file"})} for name, sha in digests.items()]}


def test_only_published_files_are_asked_of_all():
    facts = {"a": host(code=None, data="d"), "b": host(code=None, data="d")}
    assert judge_cluster._published(facts, {CODE: "c", DATA: "d"}) == {DATA: "d"}
    # A file that one host has is asked of all with the digest that was published.
    facts = {"a": host(code="x"), "b": host(code="y"), "c": host(code="y"), "d": host(code=None), "e": {"unreachable": "down"}}
    assert judge_cluster._published(facts, {CODE: "x"}) == {CODE: "x"}


def test_failed_module_counts_as_a_silent_host():
    looked = {"a": {"facts": {"user": "pi"}}, "b": {"unreachable": True, "msg": "no route"}, "c": {}}
    assert judge_cluster._facts(looked) == {"a": {"user": "pi"}, "b": {"unreachable": "no route"}, "c": {"unreachable": "no answer"}}
    assert judge_cluster._network({"a": {"pairs": {}}}) is None
    assert judge_cluster._network({"a": {"pairs": {"b": {}}}, "b": {"skipped": True}}) == {"a": {"pairs": {"b": {}}}}
