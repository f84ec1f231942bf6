-- -> number of events, number of dropped ones or false
return reply({ call('ZCARD', PREFIX .. 'ends'), call('GET', PREFIX .. 'ends_dropped') })
