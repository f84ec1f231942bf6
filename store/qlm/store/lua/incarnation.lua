-- -> the incarnation
return finish(INCARNATION)
