-- -> the incarnation
return reply(INCARNATION)
