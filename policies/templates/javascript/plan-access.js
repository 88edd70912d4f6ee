// Keeps subdomains for the customers that they were promised to.
//
// Names are those of wit/, in camelCase; what is optional and absent is undefined.

const RULE = 'reserved-subdomain';
const CODE = 'subdomain_reserved';

let reserved = new Map();

export const module = {
  describe() {
    return {
      name: '__NAME__',
      version: '0.1.0',
      summary: 'Keeps subdomains for the customers that they were promised to',
      rules: [{ id: RULE, summary: 'A reserved subdomain is for its customers alone' }],
      codes: [{ code: CODE, text: 'The subdomain is reserved for another customer. Choose another one.' }],
      settingsSchema: JSON.stringify(SETTINGS),
    };
  },

  // Called once; what it leaves in memory is there for every decision.
  configure(settings) {
    reserved = new Map(Object.entries(JSON.parse(settings).reserved ?? {}));
  },
};

export const plans = {
  // Plans are the business of the next module in the chain.
  entitlements() {
    return undefined;
  },

  check(ask) {
    const subdomain = (ask.wants.subdomain ?? '').toLowerCase();
    const scopes = reserved.get(subdomain);
    if (scopes === undefined || scopes.includes(ask.caller.scopeId)) return { tag: 'allow' };
    return { tag: 'deny', val: { code: CODE, detail: `The subdomain ${subdomain} is reserved.`, rule: RULE } };
  },
};

// What the operator writes under `settings`: subdomains, each with the scopes that may have it.
const SETTINGS = {
  type: 'object',
  additionalProperties: false,
  properties: {
    reserved: { type: 'object', additionalProperties: { type: 'array', items: { type: 'string' } } },
  },
};
