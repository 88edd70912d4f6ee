// Leaves some actions to the Team's owner.
//
// Names are those of wit/, in camelCase; what is optional and absent is undefined.

const RULE = 'owner-only';
const CODE = 'team_owner_required';

let ownerOnly = [];

export const module = {
  describe() {
    return {
      name: '__NAME__',
      version: '0.1.0',
      summary: "Leaves some actions to the Team's owner",
      rules: [{ id: RULE, summary: 'Some actions are for the owner alone' }],
      codes: [{ code: CODE, text: "Only the Team's owner may do this. Ask them." }],
      settingsSchema: JSON.stringify(SETTINGS),
    };
  },

  // Called once; what it leaves in memory is there for every decision.
  configure(settings) {
    ownerOnly = JSON.parse(settings).owner_only ?? [];
  },
};

export const roles = {
  check({ action, caller }) {
    if (caller.scope !== 'team' || caller.role === 'owner' || !ownerOnly.includes(action)) return { tag: 'allow' };
    return { tag: 'deny', val: { code: CODE, detail: `Only the Team's owner may do ${action}.`, rule: RULE } };
  },
};

// What the operator writes under `settings`: actions, as the API documentation names them.
const SETTINGS = {
  type: 'object',
  additionalProperties: false,
  properties: { owner_only: { type: 'array', items: { type: 'string' } } },
};
