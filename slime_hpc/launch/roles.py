"""What each kind of role runs: "module:function", called with the RoleContext in every task of the role's step."""

ROLES = {
    "controller": "slime_hpc.rollout.controller:main",
    "router": "slime_hpc.rollout.router:main",
    "engines": "slime_hpc.rollout.engine:main",
    "trainer": "slime_hpc.trainer.main:main",
}
